"""What failover drills run on the consumer's side, each as a process of its own: slots, applications and a producer.

They do what any other does, keep a history, and can be told to hang: SIGUSR1 begins that, SIGUSR2 ends it. Each is
started as `python -m consumer.drill.NAME CONFIG`, where CONFIG is one JSON object.
"""
