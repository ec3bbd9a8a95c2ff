"""Sources and sinks: where a stream's records come from and where a join's results go.

``base`` holds the protocols. A source plans splits in the driver, and its reader reads them in the tasks; a sink's
writers stage files in the tasks, and the driver publishes them once the epoch is committed. ``factory`` opens both
by the functions that the manifest's models name (``manifest.connector``).

================================  ==================================================================================
``files``, ``files_*``            files of a directory: finding, planning and reading new ones
``folder``, ``seen``              directories and folders of object stores, and how far each file has been read
``lines``, ``text``               records of text files; JSON and CSV as columns
``plain_json``                    JSON as columns, by machine code (``native``)
``generator``, ``generator_*``    made-up records: rates and columns
``kafka_source``, ``kafka_sink``  Kafka; records move in bulk (``kafka_bulk``, by ``librdkafka`` itself) or one by one
``kafka_topics``, ``kafka_*``     which topics exist and how far each has been read; consumers; the consumer group
``schema_registry``               schemas by id
``registered``, ``decoded``       Kafka records that name their schema, as columns
``avro_*``, ``protobuf_*``        Avro and Protobuf, by machine code
``sinks``, ``console``            files and standard output
``table_*``, ``delta_*``,         tables: their sources, by a log of changes, and their sinks, by a transaction for each publication
``iceberg_*``
``outbox``, ``encoded``           results that a driver brings elsewhere, staged in the checkpoint; their form for Kafka
``postgres_*``                    a table of PostgreSQL; its client is also that of a store of snapshots
``staging``                       results that are not published yet
``deadletter``                    records that do not parse
================================  ==================================================================================
"""
