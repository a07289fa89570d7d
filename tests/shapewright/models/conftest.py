from tests import quick_exports

quick_exports.install()
