"""The page: made whole on the server, so that it works without JavaScript, and every state is a link."""
