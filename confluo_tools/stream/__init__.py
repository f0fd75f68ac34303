"""Records as a stream: into Kafka, through functions, to services (High-Touch)."""
