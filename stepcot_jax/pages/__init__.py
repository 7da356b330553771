"""Parts of HTML pages, pictures and sheets that several commands write: templates, SVG, Markdown, safe cells.

The parts of a single command's page are in its folder of `tools/`. Read `shell` first, then `sheets`.
"""
