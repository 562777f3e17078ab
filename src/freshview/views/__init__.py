"""Views for readers, writers and checkers, and their life from CREATE to DROP.

Law: a reader sees a view as its text would give it at one CSN, from its stored rows where these are exact and from its
definition where they are not; a writer waits for a view only if the view is eager, or deferred as 'differential'.
"""
