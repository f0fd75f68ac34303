"""Archives: older rows of a log as Parquet files.

parquet_parts         one Parquet file: names, writing, verification, reading
batches               records and files of a log in an archive
retention             remove the oldest parts
compaction            merge small parts
segment_source        the segments of a log that is archived
links                 the archives that a log names
writer                move sealed segments of a log into an archive
plan                  what a dry run prints
folders               which parts an archive has
path_fields           host and date as fields of the rows
reader                read an archive
log_with_archive      read a log together with its archives
"""
