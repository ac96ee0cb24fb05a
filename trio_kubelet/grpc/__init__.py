"""gRPC on unix sockets: calls to plugins and drivers, small services of our own, and the loop they run on."""
