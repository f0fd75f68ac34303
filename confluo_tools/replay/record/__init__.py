"""confluo-replay-record: what each end of a TCP connection did, in the order in which the kernel did it."""
