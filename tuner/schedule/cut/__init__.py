"""Programs that no rule takes whole, cut into pieces that rules take."""
