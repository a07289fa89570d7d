"""Connections with trackers and devices: addresses, sessions with deadlines, tunnels."""
