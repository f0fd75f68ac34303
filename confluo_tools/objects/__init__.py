"""Objects in stores such as S3, named by URL: s3://BUCKET/KEY, gs://, az://, http://, https://, memory://.

address       which names are URLs, and their parts
access        how a store is reached: endpoint, region, credentials, timeouts
store         get ranges of objects, list, put, copy and delete them
threads       threads that wait for answers
faults        what went wrong, in one line
remote_file   one object as a file: its end is kept, the other ranges are read in as few requests as is quicker
listing       the folders of a store
"""
