"""Text server in the form of OpenAI's API."""
