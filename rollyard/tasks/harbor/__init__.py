"""The task kind `harbor`: task folders of Harbor."""
