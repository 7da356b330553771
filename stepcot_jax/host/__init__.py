"""Files, locks, errors, terminal, downloads and memory of the machine; no medicine and no arrays of models.

Whatever enters from outside is opened by `untrusted`. Read `errors`, then `files`.
"""
