"""What every process needs to talk and to die well: inboxes and outboxes over ZMQ, columns, lifetime, reports. Imports only `messages`."""
