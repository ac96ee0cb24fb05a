"""The Container Runtime Interface: the agent's only way to sandboxes, containers and images."""
