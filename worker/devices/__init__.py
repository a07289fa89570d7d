"""The devices of a tracker: which may join, how fast they are, and their calibration."""
