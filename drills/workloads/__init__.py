"""The consumer side of failover drills, one process each: slots, applications and a producer.

They are ordinary processes with a history; SIGUSR1 makes them hang, SIGUSR2 ends the hang. Each is
started as `python -m zk_group.drills.workloads MODULE.FUNCTION CONFIG`, where CONFIG is one JSON object.

Imports `consumer`, and the sketches of `checker`.
"""
