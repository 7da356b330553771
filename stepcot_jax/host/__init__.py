"""Files, locks, errors, terminal, downloads and memory of the machine; no medicine and no arrays of models.

Files of unknown origin are opened by `untrusted`. Read `errors`, then `files`.
"""
