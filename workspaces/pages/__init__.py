"""Pages of engines, templates, workspaces and their files."""
