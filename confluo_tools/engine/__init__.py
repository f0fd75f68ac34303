"""Engines: what does the parts of one question, in this process, in others, or on other hosts.

    unit                  a part of an input: blocks of a segment, a batch of an archive
    partial               a mergeable state of rows, and the table of those that can travel
    rollup_partial        the partials of counts and aggregates
    rows_partial, rows    rows that are selected where they are, and merged by time
    several_partial       several partials of one pass; state_pieces: their states as one
    task                  a question as bytes; what a worker checks before it begins
    result                what a part gave, as bytes with a checksum
    worker                the work itself: a task, some units, a result
    runner                the interface of all engines, and what clusters have in common
    forks, dask_runner, spark_runner    the engines
    spark_driver          the process that has the session on a Spark cluster
    unit_plan             the units of a question
    reader                a reader that has a runner count and aggregate
    address               the engine that a name means

DESIGN.md, section 13.
"""
