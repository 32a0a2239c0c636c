use crate::support::{Pair, limits_elsewhere};

async fn pair() -> Pair {
    limits_elsewhere(|limits| limits, |credits| credits).await
}

earmark_admission::conformance!(pair);
