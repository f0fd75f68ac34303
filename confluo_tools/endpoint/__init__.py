"""What a program that goes on offers to others: listen addresses, and the endpoint of Prometheus."""
