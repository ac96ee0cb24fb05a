"""The plugin watcher: sockets in `plugins_registry`, registered with the handler of their type."""
