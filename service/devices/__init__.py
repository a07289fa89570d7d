"""The devices that have registered."""
