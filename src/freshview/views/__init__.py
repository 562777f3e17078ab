"""Views to those who read, write and check them.

Law: a reader sees a view as its text would give it at one CSN, from its rows where these are exact and from its
definition where they are not; a writer waits for views only where somebody asked for that.
"""
