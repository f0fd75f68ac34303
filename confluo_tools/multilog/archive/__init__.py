"""Archives: older rows of a log as Parquet files.

parquet_parts         one Parquet file: names, writing, verification, reading
writer                move sealed segments of a log into an archive
reader                read an archive
log_with_archive      read a log together with its archives
"""
