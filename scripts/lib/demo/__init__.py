"""The demo: real flights through a real ZooKeeper, coordinator nodes and Spark executors, with two of them killed."""
