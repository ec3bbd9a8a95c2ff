"""Python that becomes machine code, for loops over single bytes and numbers. ``docs/native.md`` explains it to who has not seen Numba.

=============================================  =====================================================================
``functions``, ``numba_names``                 how a function is declared, compiled and cached
``library``, ``build``                         the code of all functions as a library, and what makes it for an image
``addresses``                                  memory by its address
``json_lines``, ``csv_records``, ``avro``,     parsers
``protobuf``
``json_parts``, ``varint``, ``unreadable``     what they have in common, or are made of
``kafka``, ``kafka_message``                   librdkafka's messages
=============================================  =====================================================================

The kernel's own loops are functions of this kind, too, in the modules of ``kernel`` that they belong to.
"""
