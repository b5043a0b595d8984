"""The report of a run: one HTML file that anyone can open anywhere, without a network and without this package.

```python
from tstar_train.report import write_report

write_report(Path("runs/hotpotqa-0"))  # .../report.html
```
"""

from tstar_train.report.page import write_report

__all__ = ["write_report"]
