"""The scheduler process: owns every request, decides every step. numpy only; its whole input is messages and a clock.

`service` is the process, `engine.Engine` the state machine inside it, `session.Session` everything that lives and dies with one worker session.
"""
