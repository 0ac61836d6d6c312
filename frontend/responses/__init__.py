"""/v1/responses: OpenAI's Responses API, kept answers, background mode and its journal."""
