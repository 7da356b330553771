"""Folders on gs:// and s3://, brought to a folder of this machine and sent back, and an engine on Ray clusters."""
