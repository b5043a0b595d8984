"""Public question files as they are published, recognised by their keys.

| form | keys |
|---|---|
| FlashRAG lines | ``id``, ``question``, ``golden_answers`` |
| NQ-open lines | ``question``, ``answer`` (a list) |
| DPR's lists | ``question``, ``answers``; its CSV has no header: question, list |
| KILT lines | ``id``, ``input``, ``output`` (a list of objects with ``answer``) |
| TriviaQA, official JSON | ``Data`` with ``QuestionId``, ``Question``, ``Answer`` |
| TriviaQA of Hugging Face | ``question_id``, ``question``, ``answer`` (an object with ``value``, ``aliases``, ``normalized_aliases``) |
| PopQA TSV | ``id``, ``question``, ``possible_answers`` (JSON in a column) |
| HotpotQA and 2WikiMultihopQA JSON | ``_id``, ``question``, ``answer``, ``type``; 2Wiki: ``answer_id``, see ``read_aliases`` |
| MuSiQue lines | ``id``, ``question``, ``answer``, ``answer_aliases``, ``answerable`` |
| Bamboogle CSV | ``Question``, ``Answer`` |
| Search-R1 parquet | ``data_source``, ``question`` (or ``extra_info.question``), ``golden_answers`` or ``reward_model.ground_truth`` |

Lines, JSON lists, tables and parquet rows all come out as records; one function then reads a record of any form. What cannot be
read is named by file, line (entry, row) and field.
"""
