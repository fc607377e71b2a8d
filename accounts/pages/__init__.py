"""The grammar of the console's pages, shared by every kind: how they ask the API's own views, forms, tables, states."""
