"""The data of tasks that several scripts, or one script and the tests, read: tables of tasks, and file readers."""
