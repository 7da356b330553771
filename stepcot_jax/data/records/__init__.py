"""The core records and the published `data.json` layout."""
