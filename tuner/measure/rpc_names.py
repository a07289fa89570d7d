"""The names of the functions that a device serves over TVM RPC. Both sides import them; this module loads no TVM."""

OPEN = "shapewright.open"
TRIAL = "shapewright.trial"
VERIFY = "shapewright.verify"
BASELINES = "shapewright.baselines"
DESCRIBE = "shapewright.describe"
