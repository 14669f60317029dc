"""A member's side of the protocol: register, drain the channel, claim and release partitions, keep the lease, leave.

Imports `logs` and the types of `consumer` itself; knows neither `fetching` nor `sealing`.
"""
