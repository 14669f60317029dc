"""What `consumer.spark` offers. A slot's process, and a rewind, load modules of this package without PySpark.

Imports all of `consumer` but `cli`.
"""
