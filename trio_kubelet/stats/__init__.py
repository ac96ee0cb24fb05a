"""What pods and the node use: the answers for `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`."""
