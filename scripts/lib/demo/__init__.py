"""The demo: real flights, ZooKeeper, coordinator nodes and Spark executors; a node and an executor are killed."""
