"""Parts of HTML pages, pictures and sheets that several commands write: templates, SVG, Markdown, safe cells.

What one command alone shows stands beside it in `tools/`. Read `shell` first, then `sheets`.
"""
