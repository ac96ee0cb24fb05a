"""What a user of the node asks its agent, by kubectl's words: `get`, `describe`, `top`, `logs`, `exec` …

All ask the running agent over its local socket, which only its user may open; no API server is needed. What
kubectl cannot show is the end of `describe pod`: each decision of the agent with time and cause.
"""
