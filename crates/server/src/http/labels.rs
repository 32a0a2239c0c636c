//! The labels of a complete.

use earmark_core::{SETTLE_LABEL_VALUE_BYTES_MAX, SETTLE_LABELS_MAX, SettleLabels};
use serde::de::{Deserialize, Deserializer};

use super::calls::AttributeList;
use super::shape::{Described, Shape};

/// Labels as they are written.
pub(super) struct LabelList(AttributeList);

impl LabelList {
    pub(super) const SHAPE: Shape =
        Shape::Texts { count_max: SETTLE_LABELS_MAX, value_bytes_max: SETTLE_LABEL_VALUE_BYTES_MAX };

    /// # Errors
    /// The mistake, if there are too many or one is not allowed.
    pub(super) fn check(labels: Option<LabelList>) -> Result<SettleLabels, String> {
        let Some(LabelList(AttributeList(pairs))) = labels else { return Ok(SettleLabels::NONE) };
        SettleLabels::new(pairs).map_err(|error| format!("labels: {error}"))
    }
}

impl Described for LabelList {
    const SHAPE: Shape = LabelList::SHAPE;
}

impl<'de> Deserialize<'de> for LabelList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LabelList, D::Error> {
        AttributeList::deserialize(deserializer).map(LabelList)
    }
}
