"""API client, credentials and certificates, event recorder, objects pods read."""
