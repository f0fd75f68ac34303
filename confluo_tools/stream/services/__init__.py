"""Services on a stream of packets: they watch it, and output what they find as records."""
