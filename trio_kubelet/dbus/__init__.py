"""D-Bus: the one door to services of the operating system (systemd, logind)."""
