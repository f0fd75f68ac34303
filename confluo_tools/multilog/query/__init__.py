"""Queries on a MultiLog, in the order of their steps.

    plan                  find the rows of an expression: zone maps, indexes and filters, scans
    derived_fields        add fields that depend on earlier rows (--analyze)
    state_definitions     the definitions of such fields: built in, YAML files, classes
    unnested              make one row of each element of lists (--unnest)
    geo_fields            add countries, cities and networks of addresses (--geo)
    aggregation           aggregate the rows by group (--agg, --by)

The compiled parts are pyx/query (predicates, roll-ups) and pyx/multilog/log_scan.pyx (blocks of segments).
"""
