# Only for compiled modules: confluo_tools/core/multilog/block_file.pxd.
